"""What is measured on a model: by protocols, by questions; a scheme examined, a loss diagnosed."""
