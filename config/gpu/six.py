# The comparison of `make gpu`: after config/size/gpt2.py, in minutes on one card. See results/gpu.
# The corpus is made by: python data/books_gpu/prepare.py
dataset = "books_gpu"
gradient_accumulation_steps = 4  # 32 x 512 x 4 = 65,536 tokens a step
max_iters = 400  # 26M tokens, 1.3 times the corpus
eval_interval = 200
eval_lengths = (256, 512, 1024, 2048, 4096, 8192, 16384)
