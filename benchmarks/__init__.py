"""Each module is one measurement: `python -m benchmarks.NAME`. Figures: docs/benchmarks.md."""
