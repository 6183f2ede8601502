"""Evaluations declared as data: settings, tables, figures, written as one folder."""
