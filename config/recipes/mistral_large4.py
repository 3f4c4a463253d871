# Mistral Large 4 (Mistral AI 2026, transformers' mistral_large4): frequencies learned for the whole
# model, on those of YaRN from 512 tokens, which is L here, without a temperature; no positions in
# every fourth layer; queries times s ln(i + 1) + b in each head; latent attention. The class's
# defaults; YaRN, there by 2,048, has no effect within L. Left out: the indexer that chooses 2,048
# keys, experts, a cap on logits, an untied output layer; layers without positions share no columns.
pos = (
    "ssmax(bias=True) + (3 * learned_rope(layout=interleaved, shared=True, per_layer=False) | nope)"
)
extend = "yarn(factor=auto, mscale=0.0)"
norm = "rmsnorm"
mlp = "swiglu"
kv_lora_rank = 64
qk_rope_head_dim = 32  # half of the columns, as theirs
