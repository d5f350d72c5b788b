"""Pure numbers: accuracies, the acceptance length they promise, the vocabulary's coverage, the depth to deploy."""
