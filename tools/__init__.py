"""Auxiliary programs, each `python -m tools.NAME`.

bench      speed and memory of schemes
explain    what an expression or a model's config.json means
export     writes a run as a Hugging Face model
docs       writes docs/schemes.md and docs/settings.md
board      tables and figure of the board, from rows
orders     which orders of two schemes hold from one board to a larger one, from rows
compare    claims of papers, judged by rows
peers      speed and memory beside other libraries
longrope   searches LongRoPE's factors for a trained run
"""
