"""What tests share: builders, fakes and fixtures. No test imports another test."""
