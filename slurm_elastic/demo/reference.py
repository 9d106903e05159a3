"""The same training at a fixed size, outside Slurm: what the elastic run is compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.errors import TestbedError
from slurm_elastic.observe.ledger import LedgerLine, read_ledger

WORKERS = 2
LONGEST_S = 900.0


@dataclass(slots=True)
class Reference:
    """`start` once, `wait` for its end, `stop` in any case. Two processes under torchrun."""

    directory: Path
    steps: int
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin in the background, behind everything else that the machine has to do."""
        self.directory.mkdir(parents=True, exist_ok=True)
        environ = {
            **os.environ,
            "DEMO_STEPS": str(self.steps),
            "DEMO_ALONE": str(self.directory),
            "DEMO_RESULT": str(self.directory / "result.json"),
            "OMP_NUM_THREADS": "1",
        }
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["nice", "-n", "5", sys.executable, *launch, "-m", "slurm_elastic.demo.train"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it ended. Raises TestbedError when it failed or takes too long."""
        if self._process is None:
            self.start()
        assert self._process is not None
        try:
            code = self._process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            raise TestbedError(f"the run of fixed size failed ({code})", fix=f"see {self.directory / 'log'}")

    def stop(self) -> None:
        """End it if it still runs: torchrun takes its workers along."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def ledger(self) -> tuple[LedgerLine, ...]:
        return tuple(read_ledger(self.directory / "ledger.jsonl"))

    def final_loss(self) -> float:
        return final_loss(self.directory / "result.json")


def final_loss(result: Path) -> float:
    """Loss on the held-out text, as the training script wrote it."""
    return float(json.loads(result.read_text(encoding="utf-8"))["final_loss"])
