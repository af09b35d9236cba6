"""The figures of a report, one file per subject. A figure is a function that takes a study and draws one matplotlib
figure, or returns None where the runs do not have what it needs; `page.py` says where it stands on the page."""
