# The board (results/board) at GPT-2's size, after config/size/gpt2.py: make gpu-board CELL=rope
# Its corpus: python data/recall/prepare.py --text=books --longest=16384 --name=books_recall_512
dataset = "books_recall_512"
gradient_accumulation_steps = 4  # 32 x 512 x 4 = 65,536 tokens a step
max_iters = 3000  # 0.2B tokens, four times the corpus
eval_interval = 200
eval_windows = 256
