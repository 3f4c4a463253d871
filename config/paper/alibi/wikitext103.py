# Press, Smith and Lewis 2022 (ALiBi) at their size, 247M parameters, for a GPU: one epoch of
# WikiText-103 in GPT-2 tokens (theirs: 205 epochs of words). Not run yet. At half of
# the speed of half the size (results/gpu: 458,000 tokens/s on an H200, t5 a third of that) the 18
# runs of 118M tokens would take some 3.4 hours, besides the tests, and one run of 205 epochs 29.
# Pieces of N tokens end at 4,096, so the claim about 32 L is not tested. The command resumes where
# it stopped (a test at the protocol that it had begun):
# python data/wikipedia/prepare.py wikitext103 --tokenizer=gpt2
# timeout 590 python ablate.py config/paper/alibi/wikitext103.py
schemes = (
    "sinusoidal",
    "rope",
    "t5",
    "alibi",
    "sinusoidal --block_size=3072 --batch_size=8",
    "alibi --block_size=3072 --batch_size=8",
)
seeds = (1, 2, 3)
dataset = "wikitext103_gpt2"
n_layer = 16
n_head = 8
n_embd = 1024
block_size = 512
batch_size = 48  # 24,576 tokens a step, as 8 sequences of 3,072
max_iters = 4800
optimizer = "adamw"
learning_rate = 6e-4
beta2 = 0.95
eval_lengths = (512, 1024, 1536, 2560, 3072, 3584, 16384)
