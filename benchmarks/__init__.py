"""Samite's figures: how fast it trains, compiles, dispatches and is imported, beside what PyTorch offers for the same.

Each script measures both sides in one run, interleaved, and writes every sample to `benchmarks/results/NAME.json`;
`report.py` makes `docs/benchmarks.md` of these files. Run them from the root of the repository, on a quiet machine:

    python -m benchmarks.gpt_step         a training step: DistributedDataParallel and DTensor beside Samite
    python -m benchmarks.pipeline         a training step in two stages: torch.distributed.pipelining beside Samite
    python -m benchmarks.eager            ops on distributed tensors outside of compiled functions, DTensor's beside
    python -m benchmarks.compile_time     import and each pass, 4 and 24 layers
    python -m benchmarks.dispatch         what a step costs beyond the work of the workers
    python -m benchmarks.second_start     the first Inductor step of a script that was started before
    python -m benchmarks.import_time      `import samite` beyond `import torch`
    python -m benchmarks.report           docs/benchmarks.md
"""
