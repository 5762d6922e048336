from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samite.errors import ConfigError
from samite.topology import DeviceSpec, Link, Overlap, Topology

LINK = Link(bandwidth=1e9, latency=1e-6)


def test_cost_is_latency_a_message_and_time_on_the_wire() -> None:
    topology = Topology(links=(("tp", LINK),))
    assert topology.cost(2e6, "tp") == pytest.approx(1e-6 + 2e-3)
    assert topology.cost(2e6, "tp", messages=10) == pytest.approx(10e-6 + 2e-3)
    assert topology.cost(0, "tp", messages=0) == 0


def test_an_axis_without_a_link_has_the_default() -> None:
    topology = Topology(links=(("tp", LINK),))
    assert topology.link("dp") == Topology().default
    assert topology.link("tp") == LINK


def test_a_dtype_that_is_not_listed_is_the_slowest() -> None:
    spec = DeviceSpec(flops=(("bfloat16", 4e12), ("float32", 1e12)))
    assert spec.rate("bfloat16") == 4e12
    assert spec.rate("int8") == 1e12


def test_from_dict() -> None:
    data = {
        "device": {"kind": "gpu", "memory": 1 << 30, "flops": {"float32": 1e13}, "bandwidth": 1e12},
        "links": {"tp": {"bandwidth": 1e9, "latency": 1e-6}},
        "default": {"latency": 1e-3},
    }
    topology = Topology.from_dict(data)
    assert topology.device == DeviceSpec("gpu", 1 << 30, (("float32", 1e13),), 1e12)
    assert topology.link("tp") == LINK
    assert topology.link("dp") == Link(latency=1e-3)
    assert hash(topology) == hash(Topology.from_dict(data))
    assert Topology.from_dict({}) == Topology()


@pytest.mark.parametrize(
    "data, what",
    [
        ({"link": {}}, 'topology has no key "link"'),
        ({"links": {"tp": {"bandwith": 1}}}, 'links.tp has no key "bandwith"'),
        ({"links": {"tp": 4e9}}, "links.tp is 4000000000.0, not a table"),
        ({"links": {"tp": {"bandwidth": 0}}}, r"bandwidth \(bytes/s\) is 0"),
        ({"links": {"tp": {"bandwidth": "4 GB/s"}}}, "is '4 GB/s'"),
        ({"default": {"latency": -1}}, r"latency \(seconds\) is -1"),
        ({"default": {"latency": float("nan")}}, "is nan"),
        ({"default": {"times": [[1, 1e-6], [1, 2e-6]]}}, "do not grow"),
        ({"default": {"times": [[1, 1e-6], [2, 1e-7]]}}, "do not grow"),
        ({"default": {"times": [[0, 1e-6]]}}, "bytes of a link's time is 0"),
        ({"default": {"times": [1, 2]}}, "default.times is"),
        ({"device": {"latency": -1}}, r"device's latency \(seconds\) is -1"),
        ({"device": {"memory": -1}}, r"memory \(bytes\) is -1"),
        ({"device": {"flops": {}}}, "no flops"),
        ({"device": {"flops": {"float32": 0}}}, "flops in float32 is 0"),
        ({"device": []}, "device is .*, not a table"),
        ({"device": {"times": {"products": [[1, 1e-6]]}}}, 'no times of "products"'),
        ({"device": {"times": {"product": [[2, 1e-6], [1, 2e-6]]}}}, "product's times do not grow"),
        ({"device": {"times": {"product": []}}}, 'no times of "product"'),
        ({"default": {"algorithms": {"magic": [[1, 1e-6]]}}}, 'no times of all_reduces by "magic"'),
        ({"default": {"algorithms": {"ring": [[1, 1e-6], [1, 1e-6]]}}}, "do not grow"),
        ({"overlap": {"efficiency": 2}}, "efficiency is 2"),
        ({"overlap": {"efficency": 1}}, 'overlap has no key "efficency"'),
        ({"call": -1}, r"seconds of a call is -1"),
    ],
)
def test_from_dict_refuses(data: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Topology.from_dict(data)


def test_names_the_nearest_key() -> None:
    with pytest.raises(ConfigError) as error:
        Topology.from_dict({"links": {"tp": {"bandwith": 1}}})
    assert 'did you mean "bandwidth"' in error.value.help


MEASURED = Link(bandwidth=1e9, latency=1e-5, times=((1e3, 2e-5), (1e6, 1e-3)))


def test_between_measured_sizes_times_lie_on_lines() -> None:
    assert MEASURED.seconds(0) == pytest.approx(1e-5)
    assert MEASURED.seconds(500) == pytest.approx(1.5e-5)
    assert MEASURED.seconds(1e3) == pytest.approx(2e-5)
    assert MEASURED.seconds(1e6) == pytest.approx(1e-3)
    assert MEASURED.seconds(2e6) == pytest.approx(2e-3), "beyond them at the bandwidth"
    assert Topology(default=MEASURED).cost(1e3, "dp", messages=3) == pytest.approx(4e-5)


def test_dicts_come_back() -> None:
    device = DeviceSpec("gpu", 7, times=(("product", ((1e3, 1e-6), (1e6, 1e-5))),))
    link = replace(MEASURED, algorithms=(("ring", ((1e3, 1e-3),)),))
    topology = Topology(device, (("tp", link),), LINK, Overlap(0.5, 1e-5), 1e-3)
    assert Topology.from_dict(topology.to_dict()) == topology


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.integers(0, 100))
def test_cost_grows_with_bytes(fewer: float, more: float, messages: int) -> None:
    fewer, more = sorted((fewer, more))
    assert Topology().cost(fewer, "dp", messages) <= Topology().cost(more, "dp", messages)
