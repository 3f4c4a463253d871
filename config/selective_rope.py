# Angles that add up what each token asks for: rotation by content.
pos = "selective_rope"
