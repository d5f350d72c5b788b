"""What the callback is made of: ranks, interrupts, the background queue, the exports of one run."""
