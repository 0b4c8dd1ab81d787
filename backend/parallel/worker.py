"""A rank that mirrors rank 0: `python -m backend.parallel.worker`, with torchrun's variables.

It reads its part of the model, then carries out messages in the order in which they come, until `Stop`.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys

import msgspec
import numpy as np
import torch

from backend.config import EngineConfig
from backend.engine.capacity import num_pages_for
from backend.errors import EngineError
from backend.kernels.lora import AdapterRows
from backend.kv.storage import KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.step_input import Ints, StepInput, WindowedPages, step_of_tables
from backend.lora.adapter_weights import Adapter
from backend.models.loaded import LoadedModel
from backend.parallel.group import Group, RankError, join
from backend.parallel.messages import (
    CountPages,
    Forward,
    Load,
    Logits,
    Message,
    Move,
    NewStorage,
    Place,
    Stop,
    Zero,
)
from backend.parallel.mirror import load_part
from backend.parallel.part import PartDecoder, PartPlacement

EXIT_CANNOT_SERVE = 2
_SETTLED = (CountPages, Forward, Logits, NewStorage, Place)
"""After these all ranks tell each other whether they failed."""

logger = logging.getLogger(__name__)


class Worker:
    """What rank 0 has, but for plans."""

    def __init__(self, group: Group, config: EngineConfig, model: LoadedModel) -> None:
        self._group, self._config, self._model = group, config, model
        assert isinstance(model.decoder, PartDecoder)
        self._decoder = model.decoder
        self._storages: dict[int, KVStorage] = {}
        self._placement: PartPlacement | None = None

    @torch.inference_mode()
    def run(self, message: Message) -> None:
        """Carry out one message. An error is told to all ranks when the next one that settles ends."""
        try:
            self._run(message)
        except Exception as error:  # noqa: BLE001 - it is rank 0's to decide
            self._group.fail(error)
        if isinstance(message, _SETTLED):
            try:
                self._group.settle()
            except Exception as error:
                if not isinstance(error, RankError):
                    logger.exception("rank %s could not compute its part", self._group.rank)

    def _run(self, message: Message) -> None:
        match message:
            case Forward():
                self._forward(message)
            case Logits():
                self._logits(message)
            case Move():
                sources, targets = (self._on_device(each) for each in (message.sources, message.targets))
                self._storages[message.storage].move(sources, targets, is_windowed=message.is_windowed)
            case Zero():
                self._storages[message.storage].zero(message.slot, message.window_slot)
            case Place():
                self._place(message)
            case NewStorage():
                for number in message.dropped:
                    del self._storages[number]
                self._storages[message.number] = self._model.new_kv_storage(
                    message.num_pages, num_window_pages=message.num_window_pages
                )
            case CountPages():
                own = self._group.attempt(num_pages_for, self._config, self._model)
                self._group.least(own or 0)

    def _forward(self, message: Forward) -> None:
        token_ids = self._on_device(message.token_ids).int()
        context = self._group.attempt(self._open, message)
        self._decoder.forward(token_ids, context)

    def _open(self, message: Forward) -> AttentionContext:
        return self._model.open(self._step(message), self._storages[message.storage])

    def _step(self, message: Forward) -> StepInput:
        count = len(message.query_lens)
        token_ids = self._on_device(message.token_ids).int()
        lengths = message.query_lens, message.context_lens

        def opened(pages: bytes) -> StepInput:
            table = _ints(pages).reshape(count, -1)
            return step_of_tables(token_ids, *lengths, table, self._model.device, message.trees)

        step = opened(message.pages)
        windowed = None
        if message.windows is not None:
            other = opened(message.windows)
            windowed = WindowedPages(other.slots, other.on_device.page_table)
        return StepInput(
            step.token_ids,
            step.slots,
            step.on_device,
            *lengths,
            step.rows,
            adapters=self._adapter_rows(message.adapters),
            trees=message.trees,
            windowed=windowed,
        )

    def _logits(self, message: Logits) -> None:
        model = self._model
        with self._group.together():
            width = model.config.hidden_size
            hidden = torch.empty(message.num_rows, width, dtype=model.dtype, device=model.device)
            self._group.share(hidden)
            rows = self._adapter_rows(message.adapters)
        self._decoder.logits(hidden, rows)

    def _place(self, message: Place) -> None:
        model, config = self._model, self._config
        if self._placement is None:
            self._placement = PartPlacement(model.sites, config.adapter_slots, model.dtype, model.device)

        def tensor(data: bytes, rank: int) -> torch.Tensor:
            return torch.frombuffer(bytearray(data), dtype=model.dtype).view(rank, -1)

        factors = {
            module: (tensor(down, rank), tensor(up, rank))
            for module, (rank, down, up) in message.factors.items()
        }
        adapter = Adapter(message.digest, "", message.rank, factors, 0)
        if message.slot is None:
            self._placement.reserve(adapter)
        else:
            self._placement.place(message.slot, adapter)

    def _on_device(self, data: bytes) -> torch.Tensor:
        return torch.from_numpy(_ints(data)).to(self._model.device)

    def _adapter_rows(self, data: bytes | None) -> AdapterRows | None:
        return None if data is None else AdapterRows(_ints(data), self._model.device)


def _ints(data: bytes) -> Ints:
    return np.frombuffer(data, dtype=np.int32).astype(np.int64)


def main() -> int:
    """Join, load, mirror. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    group = join()
    decoder = msgspec.msgpack.Decoder(Message)
    first = decoder.decode(group.broadcast())
    assert isinstance(first, Load)
    try:
        worker = Worker(group, first.config, load_part(first.config, group))
    except EngineError as error:
        logger.error("rank %s: %s", group.rank, error)
        return EXIT_CANNOT_SERVE
    gc.collect()
    gc.freeze()
    while not isinstance(message := decoder.decode(group.broadcast()), Stop):
        worker.run(message)
    group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
