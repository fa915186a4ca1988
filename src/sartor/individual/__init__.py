"""Individual accounts: what each holder's gradients really cost, filters that make a guarantee of it, and safe use of such figures."""
