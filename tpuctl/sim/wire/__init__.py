"""Forms of requests and answers that all APIs share."""
