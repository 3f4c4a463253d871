"""What is measured on a model: protocols, questions, its scheme examined, its loss diagnosed."""
