"""Auxiliary programs, each `python -m tools.NAME`.

bench      speed and memory of schemes
explain    what an expression or a model's config.json means
export     writes a run as a Hugging Face model
docs       writes docs/schemes.md and docs/settings.md
board      tables and figure of the board, from rows
compare    claims of papers, judged by rows
longrope   searches LongRoPE's factors for a trained run
"""
