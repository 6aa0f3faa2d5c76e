"""Made last, in architectures that no other case uses. No rule may be tuned on these."""
