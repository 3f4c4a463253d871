# A short fine-tune at 4 times the default length; name the trained run: --init_from=out/RUN
extend = (
    "yarn(factor=4)"  # or --extend='pi(factor=4)', --extend=none to tell what an extension adds
)
block_size = 512
batch_size = 4
max_iters = 100  # 0.2M tokens
warmup_iters = 10
learning_rate = 5e-4  # a sixth of the rate it was trained with
eval_interval = 100
