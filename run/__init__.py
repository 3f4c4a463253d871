"""A run: its folder, its checkpoints, its log; loading; models of Hugging Face both ways."""
