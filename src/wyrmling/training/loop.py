"""The training loop: batches to steps to reports, validations, checkpoints, samples.

Everything that decides a weight is a function of the step counter and the checkpoint: the loop itself holds only what
it tells people, and what `progress.json` saves.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ..checkpoint import list_checkpoints, prune, save_checkpoint, write_pointer
from ..data.batches import Batch
from ..errors import DivergedError, StorageError, UserError, WyrmlingError
from ..optim import global_norm
from ..watch.events import (
    Broadcaster,
    CheckpointReport,
    Control,
    EpochReport,
    Message,
    RunEnded,
    SampleReport,
    StepReport,
    ValidationReport,
)
from ..watch.memory import current_memory
from ..watch.profile import StageProfile
from .evaluation import Evaluation, textless_tokens
from .progress import EARLY, FINISHED, Progress, Window
from .sample import write_sample
from .session import Session
from .step import StepOutcome, StepRules, optimizer_step


@dataclass(frozen=True)
class LoopEnd:
    """How a loop ended."""

    step: int
    reason: str
    loss: float | None
    validation: Evaluation | None


class TrainingLoop:
    """Runs a session from its present step to its end.

    Args:
        session: model, optimizer, data and settings, ready.
        progress: where the run stands.
        reports: who is told.
        control: how others ask the loop to end.
        profile: what takes the times; None: the plain one, which is always on.
    """

    def __init__(
        self,
        session: Session,
        progress: Progress,
        reports: Broadcaster,
        control: Control,
        profile: StageProfile | None = None,
    ) -> None:
        self.session, self.progress, self.reports, self.control = session, progress, reports, control
        self.settings = session.config.training
        textless = textless_tokens(session.tokenizer, session.machine)
        self.rules = StepRules.of(session.config, session.scales, textless)
        self.profile = StageProfile() if profile is None else profile
        self._lengths = session.tokenizer.byte_lengths()
        self._validation: Evaluation | None = None
        self._place = session.run.identity()
        self._saved_step: int | None = progress.step or None
        self._started = time.monotonic() - progress.seconds
        self._start_clock()

    def run(
        self,
        begin: Callable[[], None] = lambda: None,
        before_first_step: Callable[[Evaluation], None] | None = None,
    ) -> LoopEnd:
        """Train until the last step, early stopping, or a request to stop; the end is always saved.

        Args:
            begin: announces the run; whatever happens from its first line on, `on_end` is sent.
            before_first_step: told what the first weights are worth, on the sample of every later validation.
        Raises:
            DivergedError, StorageError, and what callbacks raise; `on_end` is sent in every case.
        """
        try:
            begin()
            if self.progress.step == 0 and (self.settings.sanity_validation or before_first_step):
                self._first_validation(before_first_step)
            reason = self._steps()
        except DivergedError as error:
            with contextlib.suppress(Exception):
                self._end(str(error), diverged=True)
            raise DivergedError(f"{error}; {self._way_on()}") from None
        except BaseException as error:
            reason = str(error) if isinstance(error, WyrmlingError) else type(error).__name__
            with contextlib.suppress(Exception):  # the first error is the one to tell
                self._end(reason)
            raise
        self._end(reason)
        return LoopEnd(self.progress.step, reason, self.progress.loss, self._validation)

    def _way_on(self) -> str:
        """What to do after a divergence."""
        less = "with a smaller optimizer.learning_rate or optimizer.weight_decay, or a longer warm-up"
        steps = list_checkpoints(self.session.run.checkpoints)
        if not steps:
            return f"there is no checkpoint yet: start a new run {less}"
        which = f"that of step {steps[0]} is intact"
        if len(steps) > 1:
            which = (
                f"those of steps {', '.join(map(str, steps))} are intact (training.resume_checkpoint_step)"
            )
        return (
            f"of its checkpoints {which}: go on from one in a new run {less}: "
            f"wyrmling train --fork {self.session.run.name} --set optimizer.learning_rate=..."
        )

    def _steps(self) -> str:
        session, total = self.session, self.session.total_steps
        if self.progress.validation_due:  # the run was stopped in the middle of one
            reason = self._after_step()
            if reason is not None:
                return reason
        with session.batches(self.progress.step) as batches:
            while self.progress.step < total:
                if self.control.stop_requested:
                    return self._stop_on_request()
                with self.profile.stage("data"):
                    micro_batches = next(batches)
                self._step(micro_batches)
                reason = self._after_step()
                if reason is not None:
                    return reason
        return FINISHED

    def _step(self, batches: list[Batch]) -> None:
        session, step = self.session, self.progress.step + 1
        rate = session.schedule.rate(step)
        activity = None if session.continual is None else session.continual.activity(step)
        outcome = optimizer_step(
            session.model,
            session.optimizer,
            batches,
            session.machine,
            step=step,
            rate=rate,
            decay=session.weight_decay.at(step),
            rules=self.rules,
            profile=self.profile,
            streams=session.streams,
            activity=activity,
        )
        if session.continual is not None:
            with self.profile.stage("optimizer"):
                self.progress.window.neurons_replaced += session.replace_neurons(step, rate, activity) or 0
        self.progress.step = step
        self.progress.tokens_seen += outcome.targets
        self._count(outcome, batches)
        logged = step % self.settings.log_frequency == 0 or step == session.total_steps
        with self.profile.stage("logging"):
            self.reports.on_step(self._step_report(outcome, rate, logged))
        self.profile.after_step(batches)

    def _after_step(self) -> str | None:
        """Validation, checkpoint, sample and the decision to stop, in this order; the reason to end, or None."""
        step, total, settings = self.progress.step, self.session.total_steps, self.settings
        last = step == total
        self.progress.validation_due = False  # made up for below, or the interval has changed since
        validated = new_best = False
        if self.session.dataset.validation is not None and (
            last or step % self.session.validation_interval == 0
        ):
            validated, new_best = self._validate()
            if not validated:
                return self._stop_on_request()
        early = validated and self.progress.best.exhausted(settings.early_stopping) and not last
        epoch = self.session.epoch_ended_by(step)
        self.progress.reason = FINISHED if last else EARLY if early else None
        if (
            last
            or early
            or new_best
            or step % settings.checkpoint_interval_iters == 0
            or (epoch and settings.epochs)
        ):
            self._checkpoint()
        if epoch:
            self.reports.on_epoch(EpochReport(epoch, step, self.progress.tokens_seen, self.control))
        if last or early or (settings.sample_interval_iters and step % settings.sample_interval_iters == 0):
            self._sample()
        return EARLY if early else None

    def _stop_on_request(self) -> str:
        self.progress.reason = self.control.reason
        if self._saved_step != self.progress.step:
            self._checkpoint()
        return self.control.reason or "stop requested"

    def _start_clock(self) -> None:
        """Begin to measure the speed until the next logged step."""
        self._clock_time = time.monotonic()
        self._clock_steps = self._clock_targets = 0

    def _count(self, outcome: StepOutcome, batches: list[Batch]) -> None:
        self.progress.window.add(outcome.loss_sum, outcome.textless_loss_sum)
        for batch in batches:
            self.progress.window.count(batch.targets, self._lengths)
        self._clock_steps += 1
        self._clock_targets += outcome.targets

    def _step_report(self, outcome: StepOutcome, rate: float, logged: bool) -> StepReport:
        session, progress = self.session, self.progress
        plain = StepReport(
            step=progress.step,
            total_steps=session.total_steps,
            learning_rate=rate,
            tokens=outcome.targets,
            tokens_seen=progress.tokens_seen,
            control=self.control,
            epoch=session.epochs_begun(progress.step),
        )
        if not logged:
            return plain
        found = progress.window.evaluation()
        self.profile.waited()
        seconds = max(time.monotonic() - self._clock_time, 1e-9)
        progress.loss = found.loss
        progress.seconds = time.monotonic() - self._started
        report = replace(
            plain,
            loss=progress.loss,
            gradient_norm=outcome.gradient_norm,
            tokens_per_second=self._clock_targets / seconds,
            step_seconds=seconds / max(self._clock_steps, 1),
            memory_bytes=session.device_memory() or current_memory(),
            bits_per_byte=found.bits_per_byte,
            neurons_replaced=None if session.continual is None else progress.window.neurons_replaced,
        )
        progress.window = Window()
        self._start_clock()
        return report

    def _first_validation(self, told: Callable[[Evaluation], None] | None) -> None:
        """Before the first step: a mistake in the validation shows now, and the best one later has to be lower.

        Borrowed weights are a checkpoint, and the best one so far.
        """
        if self.session.dataset.validation is None:
            return
        evaluation, seconds = self._run_validation()
        if evaluation.complete:
            if math.isfinite(evaluation.loss):
                self.progress.best = replace(self.progress.best, loss=evaluation.loss, step=0)
                if 0 in list_checkpoints(self.session.run.checkpoints):
                    write_pointer(self.session.run.checkpoints, "best", 0)
            if told is not None:
                told(evaluation)
        self._report_validation((evaluation, seconds), best=False)

    def _run_validation(self) -> tuple[Evaluation, float]:
        begun = time.monotonic()
        with self.profile.stage("validation"):
            evaluation = self.session.validate(lambda: self.control.stop_requested)
            self.profile.waited()
        return evaluation, time.monotonic() - begun

    def _validate(self) -> tuple[bool, bool]:
        """Run a validation and take note of it: whether it was completed, and whether it is the best so far."""
        evaluation, seconds = self._run_validation()
        self.progress.validation_due = not evaluation.complete
        if not evaluation.complete:
            return False, False
        step, rule = self.progress.step, self.settings.early_stopping
        self.progress.best = self.progress.best.after(evaluation.loss, step, rule.min_delta if rule else 0.0)
        self.progress.validation_loss, self.progress.validation_step = evaluation.loss, step
        self._validation = evaluation
        best = self.progress.best.step == step
        self._report_validation((evaluation, seconds), best)
        self._clock_time += seconds  # validation is not training speed
        return True, best

    def _report_validation(self, measured: tuple[Evaluation, float], best: bool) -> None:
        evaluation, seconds = measured
        if evaluation.complete:
            self.reports.on_validation(
                ValidationReport(
                    step=self.progress.step,
                    loss=evaluation.loss,
                    tokens=evaluation.targets,
                    seconds=seconds,
                    control=self.control,
                    bits_per_byte=evaluation.bits_per_byte,
                    best=best,
                )
            )

    def _checkpoint(self) -> None:
        session, progress, begun = self.session, self.progress, time.monotonic()
        progress.seconds = begun - self._started
        root = session.run.checkpoints
        with self.profile.stage("checkpoint"):
            if session.run.identity() != self._place:
                raise StorageError(
                    f"{session.run.path} was moved, emptied or removed while the run went on, so step {progress.step} "
                    "cannot be saved: put the folder back and resume the run from its last checkpoint"
                )
            self._refuse_weights_that_are_not_finite()
            record = progress.to_json(session.total_steps)
            path = save_checkpoint(root, progress.step, session.tensors(), record, session.surroundings)
            write_pointer(root, "latest", progress.step)
            if progress.best.step == progress.step:
                write_pointer(root, "best", progress.step)
            prune(root, self.settings.checkpoint_keep, progress.best.step)
        self._saved_step = progress.step
        seconds = time.monotonic() - begun
        size = sum(file.stat().st_size for file in path.iterdir())
        self.reports.on_checkpoint(CheckpointReport(progress.step, path, size, seconds, self.control))
        self._clock_time += time.monotonic() - begun

    def _refuse_weights_that_are_not_finite(self) -> None:
        """An update can ruin a weight although its gradient was finite; such weights are not worth keeping."""
        if not math.isfinite(float(self.progress.window.loss_sum)):
            raise DivergedError(f"training diverged at step {self.progress.step}: the loss is not finite")
        if math.isfinite(global_norm([parameter.detach() for parameter in self.session.model.parameters()])):
            return
        for name, parameter in self.session.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise DivergedError(f"training diverged at step {self.progress.step}: {name} is not finite")

    def _sample(self) -> None:
        begun = time.monotonic()
        with self.profile.stage("logging"):
            try:
                sample = write_sample(self.session, lambda: self.control.stop_requested)
            except UserError as error:
                self.reports.on_message(Message("warning", "sample", f"no sample: {error}"))
            else:
                if sample is not None:
                    self.reports.on_sample(
                        SampleReport(self.progress.step, sample.prompt, sample.text, self.control)
                    )
        self._clock_time += time.monotonic() - begun

    def _end(self, reason: str, *, diverged: bool = False) -> None:
        ended = RunEnded(
            step=self.progress.step,
            reason=reason,
            seconds=time.monotonic() - self._started,
            tokens=self.progress.tokens_seen,
            path=self.session.run.path,
            loss=self.progress.loss,
            validation_loss=self.progress.validation_loss,
            diverged=diverged,
        )
        try:
            for message in self.profile.closing():
                self.reports.on_message(message)
        finally:
            self.reports.on_end(ended)
