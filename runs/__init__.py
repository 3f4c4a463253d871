"""What lies around a training: its folder, checkpoint, device, start, log and results."""
