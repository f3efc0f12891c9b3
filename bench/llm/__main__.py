"""Bench of language models: the same weights and chats through Forebay and its peers, one process and one thread each.

    make bench-llm
    make bench-llm BENCH_ARGS="--systems forebay,trainer --rounds 1"
    make bench-llm BENCH_ARGS="--go-on"

Two kinds of chats, of usual lengths and with a heavy tail. Then the start of a second run, the documents after a kill,
and the preparation by one process and by two. Writes llm.md and llm.json to docs/benchmarks after every turn.
With --go-on and the same options, a run that was ended goes on from llm.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.llm.data import KINDS, SEQ_LEN, LlmData, write_data, write_model
from bench.llm.held_out import losses_of
from bench.llm.preparation import measure
from bench.llm.report import report
from bench.llm.resume import measure_resume
from bench.llm.setting import LlmSetting
from bench.llm.turn import ENTRIES, FOREBAY, PADDED, TRL, LlmEntry, take_turn
from bench.machine import machine
from bench.processes import REPOSITORY
from bench.venvs import interpreters

STEP_ROWS, PASS_DOCUMENTS = 4, 16
RESUMED = (FOREBAY, PADDED, TRL)


class LlmBench:
    """Turns of one run of the bench, and the results so far."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._began = time.time()
        wanted = given.systems.split(",")
        self._entries = [each for each in ENTRIES if any(name in each.system for name in wanted)]
        self._pythons, failed = interpreters([each.venv for each in self._entries], given.cache / "venvs")
        self._model = given.cache / "work" / "llm-model"
        self._pad = write_model(self._model)
        self._data = {kind: write_data(given.data, self._model, kind, given.chats, PASS_DOCUMENTS) for kind in KINDS}
        facts = {kind: self._facts(data) for kind, data in self._data.items()}
        options = {"steps": given.steps, "chats": given.chats, "step_rows": STEP_ROWS, "seq_len": SEQ_LEN}
        options["entries"] = json.loads((self._model / "config.json").read_text())["vocab_size"]
        self.found: dict[str, Any] = {"machine": machine(), "options": options, "data": facts, "failed": failed}
        self.found |= {"turns": [], "second": [], "resume": {}, "preparation": {}, "pieces": []}
        self._took_s = 0.0
        if given.go_on:
            self._go_on()
        self.found["pieces"].append({"load_before": machine()["load_before"]})

    def run(self) -> None:
        """Take all turns: the first round, then what needs one turn only, then the other rounds."""
        self._round(0)
        for entry in self._usable():
            self._second_run(entry)
        for entry in RESUMED:
            if entry in self._usable():
                if entry.name in self.found["resume"]:
                    continue
                print(f"resume: {entry.name}", flush=True)
                work = self._setting("usual", self._given.cache / "work" / f"llm-resume-{entry.system}")
                self.found["resume"][entry.name] = measure_resume(entry, self._python(entry), work, self._given.limit)
                self._write()
        if not self.found["preparation"]:
            self.found["preparation"] = measure(self._given.data, self._model, self._given.limit)
            self._write()
        for number in range(1, self._given.rounds):
            self._round(number)

    def _round(self, number: int) -> None:
        for kind in KINDS:
            for entry in self._usable():
                turn = {"name": entry.name, "kind": kind, "round": number}
                if any(turn.items() <= each.items() for each in self.found["turns"]):
                    continue
                print(f"round {number + 1}, {kind}: {entry.name}", flush=True)
                self.found["turns"].append(turn | self._turn(entry, kind))
                self._write()

    def _turn(self, entry: LlmEntry, kind: str) -> dict[str, Any]:
        setting = self._setting(kind, self._work(entry, kind))
        shutil.rmtree(setting.work, ignore_errors=True)
        Path(setting.work).mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="fb-") as snapshots:
            kept = replace(setting, snapshots=snapshots, snapshot_every=self._given.steps // 3)
            (answer,) = take_turn(entry, self._python(entry), kept, self._given.limit)
            if "error" in answer:
                return answer
            return answer | {"losses": losses_of(Path(snapshots), self._model, self._data[kind].held_out_rows)}

    def _second_run(self, entry: LlmEntry) -> None:
        """Start a second run on what the first one has left, up to its first step."""
        if any(each["name"] == entry.name for each in self.found["second"]):
            return
        print(f"second run: {entry.name}", flush=True)
        setting = replace(self._setting("usual", self._work(entry, "usual")), steps=1)
        shutil.rmtree(Path(setting.work) / "runs", ignore_errors=True)
        (answer,) = take_turn(entry, self._python(entry), setting, self._given.limit)
        self.found["second"].append({"name": entry.name} | answer)
        self._write()

    def _setting(self, kind: str, work: Path) -> LlmSetting:
        data = self._data[kind]
        return LlmSetting(
            chats=str(data.chats),
            rows=str(data.rows),
            model=str(self._model),
            work=str(work),
            seq_len=SEQ_LEN,
            step_rows=STEP_ROWS,
            pass_rows=STEP_ROWS,
            step_documents=self._step_documents(data),
            pass_documents=PASS_DOCUMENTS,
            pad=self._pad,
            steps=self._given.steps,
        )

    def _step_documents(self, data: LlmData) -> int:
        """Documents with about as many tokens as the packed rows of a step have, in whole passes."""
        return max(round(STEP_ROWS * SEQ_LEN * data.fill / data.mean_tokens / PASS_DOCUMENTS), 1) * PASS_DOCUMENTS

    def _facts(self, data: LlmData) -> dict[str, float]:
        names = ("mean_tokens", "padded_fill", "fill")
        return {name: getattr(data, name) for name in names} | {"step_documents": self._step_documents(data)}

    def _usable(self) -> list[LlmEntry]:
        return [each for each in self._entries if each.venv in self._pythons]

    def _python(self, entry: LlmEntry) -> Path:
        return self._pythons[entry.venv]

    def _work(self, entry: LlmEntry, kind: str) -> Path:
        work: Path = self._given.cache / "work" / f"llm-{entry.system}-{entry.variant}-{kind}"
        return work

    def _go_on(self) -> None:
        """Take over the results of a run with the same options that was ended."""
        written = self._given.out / "llm.json"
        if not written.exists():
            sys.exit(f"--go-on: there is no {written}. Leave it out.")
        earlier = json.loads(written.read_text())
        if earlier["options"] != self.found["options"] or earlier["data"] != self.found["data"]:
            sys.exit(f"--go-on: {written} has options {earlier['options']}, and this run {self.found['options']}.")
        self.found = earlier
        self._took_s = earlier["took_s"]

    def _write(self) -> None:
        self.found["took_s"] = self._took_s + time.time() - self._began
        self.found["pieces"][-1] |= {"took_s": time.time() - self._began}
        self._given.out.mkdir(parents=True, exist_ok=True)
        (self._given.out / "llm.json").write_text(json.dumps(self.found, indent=1) + "\n")
        (self._given.out / "llm.md").write_text(report(self.found))


def main() -> None:
    # The turn in progress must end with this process, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    bench = LlmBench(_options())
    bench.run()
    print(f"docs/benchmarks/llm.md, .json after {bench.found['took_s'] / 60:.0f} minutes")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=9, help="steps of a turn, a multiple of 3")
    parser.add_argument("--chats", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a turn has failed")
    parser.add_argument("--systems", default="", help="only those with one of these names, with commas between")
    parser.add_argument("--go-on", action="store_true", help="take over the results in llm.json, and take what is left")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data" / "bench")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/forebay-bench").expanduser())
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
