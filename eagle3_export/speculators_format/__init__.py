"""How speculators writes a draft: config, tensors, vocabulary map, rotary embedding; and the verifier beside it."""
