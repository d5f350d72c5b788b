"""CHECK: can the chosen SGLang compute this draft? Every finding is made here and nowhere else."""
