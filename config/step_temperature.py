# A temperature that grows in steps in the layers without positions (Llama 4, 2025).
pos = "3 * rope | nope + step_temperature"
