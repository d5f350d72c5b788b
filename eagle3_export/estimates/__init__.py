"""What the acceptance estimates are made of: step accuracies, vocabulary coverage, the depth to deploy."""
