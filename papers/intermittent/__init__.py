"""Intermittent networks (Malik, Qi and Dalla): how often sites exchange, and with which others."""
