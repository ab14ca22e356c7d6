"""Parts of layers that have parameters or shapes of their own and no paper behind them."""
