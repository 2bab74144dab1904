"""Language heads: from the last hidden state to losses and logits."""
