"""The numeric check: speculators' model and SGLang's class on the same inputs."""
