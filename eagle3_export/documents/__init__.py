"""DESCRIBE: metadata.json and index.json, their models and schemas, and the model card."""
