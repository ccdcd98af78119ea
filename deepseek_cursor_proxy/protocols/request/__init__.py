"""Client JSON of any shape -> ChatRequest. `parse` is the entrance: every API's body is read here."""
