"""Tables, figures and the HTML page, made from run directories alone."""
