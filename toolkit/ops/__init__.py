"""What an operator looks at: status, doctor, maintenance."""
