# GPT-2's 124M parameters at L = 512, for one GPU with 24 GB or more.
# The corpus is made by: python data/books/prepare.py --tokenizer=gpt2
dataset = "books_gpt2"
block_size = 512
n_layer = 12
n_head = 12
n_embd = 768
batch_size = 32
gradient_accumulation_steps = 30  # 32 x 512 x 30 = 0.49M tokens a step, as GPT-2 and nanoGPT
optimizer = "adamw"
learning_rate = 6e-4  # nanoGPT's, for this size and batch
min_lr = 6e-5
beta2 = 0.95
max_iters = 600  # 0.3B tokens: eight times the 36M of books_gpt2; raise it for a larger corpus
eval_interval = 100
