# GPT-2's 124M parameters at L = 512, for one GPU with 24 GB or more.
# The corpus is yours: python data/text/prepare.py --name=books PATH... --tokenizer=gpt2
dataset = "books"
block_size = 512
n_layer = 12
n_head = 12
n_embd = 768
batch_size = 32
gradient_accumulation_steps = 30  # 32 x 512 x 30 = 0.49M tokens a step, as GPT-2 and nanoGPT
learning_rate = 6e-4  # nanoGPT's, for this size and batch
min_lr = 6e-5
beta2 = 0.95
warmup_iters = 200
max_iters = 5000  # 2.5B tokens
eval_interval = 250
