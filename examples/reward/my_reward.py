def score(response, label):
    return response.strip() == label
