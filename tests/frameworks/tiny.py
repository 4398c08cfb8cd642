"""Models, data and a tokenizer small enough for a second, made here: nothing is downloaded."""

from __future__ import annotations

import os
from typing import Any

import torch

WORDS = ["the", "a", "cat", "dog", "runs", "sits", "on", "under", "mat", "tree", "fast", "slow"]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **more}))


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4))


def tokens(rows: int, length: int = 16) -> torch.Tensor:
    return torch.randint(3, 64, (rows, length), generator=torch.Generator().manual_seed(0))


def examples(rows: int) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": row, "labels": row} for row in tokens(rows)]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


def as_launched() -> None:
    """Gives a rank of the pool what torchrun tells its processes; accelerate reads that."""
    import torch.distributed as dist
    from accelerate.state import AcceleratorState, GradientState

    os.environ.pop("ACCELERATE_USE_FSDP", None)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(LOCAL_RANK=rank, RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
