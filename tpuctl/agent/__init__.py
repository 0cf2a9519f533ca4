"""The program that runs on hosts (`__main__.py` says how). Its modules travel as one zip, without this file,
and find each other on the path that the zip makes: nothing here is imported."""
