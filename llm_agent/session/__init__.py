"""The transcript: lines on disk, what they come to, and how a crash is answered."""
