"""`penstock eval models`: runs an evaluation and reports it; the exit code tells whether it is complete."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.evaluation.client import ApiClient, ListedModel, RequestFailed, with_remedy
from gateway.evaluation.flags import ModelsPlan
from gateway.evaluation.own.judge import Judge
from gateway.evaluation.quality_plot import quality_plot
from gateway.evaluation.questions import Question, draw_questions
from gateway.evaluation.report import accuracy, as_document, show
from gateway.evaluation.runner import Run, Runner
from gateway.evaluation.subjects import check_judge, choose_subjects
from gateway.settings import SettingsError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def evaluate_models(plan: ModelsPlan) -> int:
    """Evaluate, print, write the files; returns the exit code. Raises SettingsError."""
    questions: Sequence[Question] = (
        draw_questions(plan.families, plan.tiers, plan.limit, plan.seed)
        if plan.data is None
        else plan.data.questions
    )
    if not questions:
        raise SettingsError("no question is left: none of --families has any of --tiers")
    runs: list[Run] = []
    began = datetime.now(UTC)
    is_interrupted = False
    try:
        asyncio.run(_until_sigterm(_evaluate(plan, questions, runs)))
    except (KeyboardInterrupt, asyncio.CancelledError):  # partial results are shown
        is_interrupted = True
    except RequestFailed as error:
        sys.stderr.write(f"penstock: {with_remedy(error)}\n")
        return EXIT_FAILED
    is_complete = not is_interrupted and all(run.is_complete for run in runs)
    state = {"began": began.isoformat(timespec="seconds"), "is_complete": is_complete}
    is_written = _write(plan, runs, state)  # first: the most important output
    show(Console(), runs)
    if is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if not is_written or any(run.verdicts["failed"] for run in runs) else 0


async def _evaluate(plan: ModelsPlan, questions: Sequence[Question], runs: list[Run]) -> None:
    client = ApiClient(plan.base_url, plan.api_key, plan.timeout_s, plan.proxy)
    try:
        listed = await _listing(client, plan)
        subjects = choose_subjects(plan, listed)
        check_judge(plan, listed)
        judge = Judge(client, plan.judge, plan.max_tokens) if plan.judge else None
        runner = Runner(client, plan.concurrency, plan.max_tokens, judge=judge)
        with _progress() as progress:
            for subject in subjects:
                runs.append(Run(subject, len(questions)))
                await runner.run(runs[-1], questions, _advance(progress, runs[-1]))
    finally:
        await client.close()


async def _until_sigterm(work: Coroutine[None, None, None]) -> None:
    """Let SIGTERM, which job schedulers send, cancel the work as Ctrl-C does."""
    task = asyncio.create_task(work)
    if threading.current_thread() is threading.main_thread():  # other threads receive no signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


async def _listing(client: ApiClient, plan: ModelsPlan) -> list[ListedModel]:
    try:
        return await client.models()
    except RequestFailed as error:
        # Some servers have no such list; it is not needed when the flags name models and prices.
        if plan.models and error.status in {404, 405, 501}:
            return []
        raise


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _advance(progress: Progress, run: Run) -> Callable[[], None]:
    """Add a progress bar for the run; returns a function that advances it."""
    task = progress.add_task(run.subject.label, total=run.num_questions, state="")

    def advance() -> None:
        share, failed = accuracy(run.verdicts), run.verdicts["failed"]
        state = [f"{100 * share:.0f} % right"] if share is not None else []
        state += [f"{failed} failed"] if failed else []
        progress.update(task, advance=1, state=", ".join(state))

    return advance


def _write(plan: ModelsPlan, runs: Sequence[Run], state: dict[str, Any]) -> bool:
    """False when a file could not be written, or nothing could be drawn; the reason is on stderr."""
    conditions = {
        "url": plan.base_url,
        **_source(plan),
        "max_tokens": plan.max_tokens,
        "concurrency": plan.concurrency,
        **state,
    }
    wants_plot = plan.outputs.plot_path is not None
    plot, told = quality_plot(runs) if wants_plot else (None, "")
    is_written = plan.outputs.write(as_document(runs, conditions), plot)
    if told:
        sys.stderr.write(f"penstock: {told}\n")
    return is_written and (plot is not None or not wants_plot)


def _source(plan: ModelsPlan) -> dict[str, Any]:
    """What the questions are."""
    if plan.data is not None:
        return {"data": plan.data.files, "data_sha256": plan.data.sha256, "judge": plan.judge or None}
    return {
        "split": "test",
        "families": plan.families,
        "tiers": plan.tiers,
        "limit_per_cell": plan.limit,
        "seed": plan.seed,
    }
