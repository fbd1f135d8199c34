"""Networks that come and go (Malik, Qi and Dalla): how often sites talk, and with whom."""
