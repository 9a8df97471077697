module github.com/ticketing-project/ticketing/clients/go

go 1.24
