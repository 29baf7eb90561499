"""What the engine tests, `topas calibrate` and the documented examples need to run a real SGLang without a GPU."""
