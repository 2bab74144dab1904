"""Text in, token ids out: sources (`sources`), tokenizers (`tokenizers`), UTF-8 in pieces (`utf8`)."""
