# RoPE, and a softmax over the largest scores alone: a quarter of L (Zhao et al. 2019).
pos = "rope + topk(keys=0.25)"
