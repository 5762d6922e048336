"""How a partitioned function is cut: `turns` says when an op runs, `spread` and `homes` where; `functions` writes."""
