"""Random-weight checkpoints in Qwen3's shape, so that the benchmarks need no downloads.

`tiny` is as small as a draft model (6.8 M parameters), `q06` has Qwen3-0.6B's shape with a small vocabulary.
The tokenizer is trained on the standard library's sources, so that a word of a prompt is one or two tokens.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

VOCAB_SIZE = 8192
CONTEXT_TOKENS = 8192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES = {
    "tiny": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 768,
    },
    "q06": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
    },
}


def ensure_checkpoint(name: str, directory: Path) -> Path:
    """The folder of checkpoint `name` under `directory`, created on first use; other names are paths."""
    if name not in SHAPES:
        path = Path(name).resolve()
        assert (path / "config.json").exists(), f"{name!r} is neither one of {list(SHAPES)} nor a checkpoint"
        return path
    path = directory / name
    if not (path / "model.safetensors").exists():
        print(f"making checkpoint {path} ...", flush=True)
        _make(name, path)
    return path.resolve()


def _make(name: str, path: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("*.py"))), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL_TOKENS[2],
        pad_token=SPECIAL_TOKENS[0],
        chat_template=CHAT_TEMPLATE,
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(wrapped),
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        **SHAPES[name],
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    wrapped.save_pretrained(path)
